"""Client library: read job files, submit, drive, follow, wait, and clean up. Every face (CLI, Airflow, Argo) uses
it.
"""
