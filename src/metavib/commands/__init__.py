"""One file a command: from parsed arguments to what is printed. The work is done elsewhere."""
