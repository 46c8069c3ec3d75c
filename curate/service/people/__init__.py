"""Users with their roles, tokens and quotas; and the audit."""
