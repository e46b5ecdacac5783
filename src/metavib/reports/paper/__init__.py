"""The paper's tables: its numbers, and the same tables measured."""
