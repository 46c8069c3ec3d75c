"""What runs made: datasets with their tags, artifacts, lineage, samples; and the upkeep of a workspace."""
