"""Commands that train: from parsed arguments to runs, and to the tables that people see."""
