"""The harness of all experiments: declarations, loops, tuning, kept runs, tables, figures. Stays as long as they do."""
