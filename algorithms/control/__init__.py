"""What policy gradients need in control: a critic, measures of episodes, recipes that fit."""
