"""`make docs`: the tables of the documents, made from the records under results/."""
