"""Jobs in folders: training runs, fits of world models, studies and runs of language models."""
