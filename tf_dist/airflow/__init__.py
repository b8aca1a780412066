"""The face to Airflow: operator, sensors, hook, triggers. Empty so far; the core and the driver come first."""
