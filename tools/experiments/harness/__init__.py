"""What all experiments share: kept runs, tables, figures."""
