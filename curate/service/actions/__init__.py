"""What can be asked of the service. Every action checks the role first, and every write writes the audit in its own
transaction. The API and the pages call only these."""
