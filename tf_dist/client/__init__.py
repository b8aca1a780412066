"""Client library of all interfaces (CLI, Airflow, Argo): read job files, submit, host a controller, follow, wait."""
