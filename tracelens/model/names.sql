-- Names: one row per distinct name of an event, numbered in the order of the names, so that the number sorts as the
-- name does and equal captures give equal numbers however their rows lie.

-- name: collect
-- Names that an export does not know share one.
CREATE OR REPLACE TABLE name_text AS
SELECT (row_number() OVER (ORDER BY name) - 1)::INTEGER AS name_id, name
FROM (SELECT DISTINCT coalesce(text, '[unknown kernel]') AS name FROM raw_name);

-- name: numbers
-- export, code, name_id: which name the number of a name within its export stands for. Order: export, code.
SELECT r.export, r.code, n.name_id
FROM raw_name r JOIN name_text n ON n.name = coalesce(r.text, '[unknown kernel]')
ORDER BY r.export, r.code;

-- name: unknown_count
SELECT coalesce(sum(row_count), 0)::BIGINT AS row_count FROM raw_name WHERE text IS NULL;

-- name: kernel_name
CREATE OR REPLACE TABLE kernel_name (
    name_id INTEGER, name VARCHAR, bucket VARCHAR, rule INTEGER, pattern VARCHAR, operation VARCHAR,
    implementation VARCHAR, synchronising BOOLEAN, fused BOOLEAN, barrier_end BOOLEAN, ranks_in_name INTEGER
);
