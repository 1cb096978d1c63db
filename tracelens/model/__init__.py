"""Raw tables in, documented model tables out: what every version of nsys means, with ranks, names and buckets."""
