"""What is between a job and any destination: waiting, leaving out, masking and renaming columns."""
