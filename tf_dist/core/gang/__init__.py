"""Gang admission: which jobs may have their pods, all or nothing."""
