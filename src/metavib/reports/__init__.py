"""What run directories say, as tables and figures on one page. Nothing here trains.

Others use `page.Page`, `collection.draw`, the registry `figures.FIGURES`, `tables.tables_of`,
`class_tables.class_tables` and `paper`, the tables of the paper.
"""
