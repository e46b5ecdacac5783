"""Foundations: errors, settings, files, memory, terminal, processes. Every stage uses them; they use none.

`errors.UserError` is the one error that users see, `settings.Settings` the base of all settings, `atomic`
writes files that are whole or absent, `untrusted` opens files that others made, `foreign_text` shows text that
others wrote. `__all__` names the modules that other stages may use.
"""

__all__ = [
    "atomic",
    "config_file",
    "cores",
    "device",
    "errors",
    "foreign_text",
    "json_record",
    "memory",
    "plain_values",
    "processes",
    "settings",
    "shapes",
    "standard_output",
    "terminal",
    "untrusted",
]
