-- What the residual of a TP sweep needs of a capture beside its events.

-- name: names
-- One row per kernel name. Order: name_id, without gaps.
SELECT name_id, bucket, operation IS NOT NULL AS collective FROM kernel_name ORDER BY name_id;
