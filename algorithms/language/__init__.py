"""Language models trained by the estimators of `mbrl.policy_gradient`, on tasks that a program
checks."""
