"""Language models, what makes tokens of texts, and passes of padded sequences through them."""
