"""Client library of every face (CLI, Airflow, Argo): read job files, submit, drive, follow, wait, clean up."""
