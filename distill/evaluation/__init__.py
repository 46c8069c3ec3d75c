"""Evaluation of students and teachers on labelled, captioned or masked images that they were not trained on.

settings     checks the recipe's `evaluate` section before anything is computed
runs         evaluates a run's student next to its teachers, or an exported model
evaluate     runs all tasks on one evaluation set
datasets     evaluation sets: training and test images, labels, texts and masks
models       the evaluated models: their features, and the spaces that they share with texts
extraction   one pass over the images, which the evaluators of the tasks observe
tasks        a file per task, plus what several tasks use
show, page   the results on a terminal and as an HTML page
"""
