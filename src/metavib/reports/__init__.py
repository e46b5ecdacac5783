"""Reports on run directories: tables and figures on one page. Nothing here trains.

`page.Page` is the page, `figures.FIGURES` the registry of figures, `judged.draw` draws them, `tables.tables_of`
and `class_tables.class_tables` make the tables, and `paper` has the tables of the paper. `__all__` names the
modules that other stages may use.
"""

__all__ = [
    "class_tables",
    "data_page",
    "doubtful",
    "figure",
    "figures",
    "judged",
    "page",
    "paper",
    "tables",
]
