"""What run directories say, as tables and figures on one page. Nothing here trains."""
