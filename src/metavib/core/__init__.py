"""What every stage needs and no stage owns.

Others use `errors.UserError`, `settings.Settings`, `plain_values`, `config_file`, `atomic` (files that are whole
or absent), `untrusted` (the door for files that others made), `foreign_text`, `json_record`, `device`, `memory`,
`cores`, `shapes`, `terminal`, `standard_output` and `processes`.
"""
