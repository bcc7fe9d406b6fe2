"""Who may run what: permits."""
