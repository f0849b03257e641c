"""Studies that back claims of the documents; each has a command and may run for long."""
