"""Parts of training systems that know nothing of language: worker groups, a transfer queue,
streams between environments, policies and trainers. Each runs on Ray, or in this process with the
same numbers."""
