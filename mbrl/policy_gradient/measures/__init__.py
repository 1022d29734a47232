"""What recipes need beside the axes: rewards from agreement, ids of groups, and what is kept from
batch to batch."""
