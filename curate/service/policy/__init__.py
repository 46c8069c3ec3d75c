"""What a recipe may do when it comes over HTTP.

bounds      size, form and interpolation of the text, before anything is built
rules       what an admin has registered for a workspace
admission   every value of a stage that leads out of the recipe, against the rules
paths       whether a path or URL is below a registered root
checking    all of it in order, and the plan: runs in a limited process
sandbox     the service's side: asks, waits, ends what takes too long
"""
