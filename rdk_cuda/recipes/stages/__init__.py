"""What is made of a recording, one artifact a file."""
