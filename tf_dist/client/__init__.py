"""What every front (command line, Airflow, Argo) does with jobs: read, submit, drive, follow, wait, bring to an end."""
