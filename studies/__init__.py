"""Programs whose figures the documents cite, one file each, run by hand."""
