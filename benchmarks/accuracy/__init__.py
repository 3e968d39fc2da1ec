"""How often is the first finding of ``diagnose`` the root cause? ``make accuracy`` measures it."""
