"""What all experiments share: options, kept runs, tuning, tables, figures, devices. It stays as long as they do."""
