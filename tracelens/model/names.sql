-- Names: one row per distinct name of an event, numbered in the order of the names, so that the number sorts as the
-- name does and equal captures give equal numbers however their rows lie.

-- name: collect
-- raw_name: which name each (export, string id) has. Ids that an export does not know share one name.
CREATE OR REPLACE TABLE name_text AS
SELECT (row_number() OVER (ORDER BY name) - 1)::INTEGER AS name_id, name
FROM (
    SELECT DISTINCT coalesce(text, '[unknown kernel]') AS name
    FROM raw_string WHERE (export, string) IN (SELECT DISTINCT export, string FROM raw_kernel)
    UNION SELECT '[unknown kernel]' FROM raw_kernel WHERE string IS NULL
    UNION SELECT label FROM copy_label WHERE copy_kind IN (SELECT DISTINCT coalesce(copy_kind, 0) FROM raw_other WHERE kind = 1)
    UNION SELECT '[CUDA memcpy Unknown]' FROM raw_other WHERE kind = 1 AND coalesce(copy_kind, 0) NOT IN (SELECT copy_kind FROM copy_label)
    UNION SELECT '[CUDA memset]' FROM raw_other WHERE kind = 2
    UNION SELECT '[CUDA graph ' || coalesce(graph::VARCHAR, '?') || ']' FROM raw_other WHERE kind = 3
);
CREATE OR REPLACE TABLE string_name AS
SELECT s.export, s.string, n.name_id
FROM raw_string s JOIN name_text n ON n.name = coalesce(s.text, '[unknown kernel]');

-- name: unknown_count
SELECT count(*) AS row_count
FROM raw_kernel k LEFT JOIN raw_string s USING (export, string)
WHERE s.text IS NULL;

-- name: kernel_name
CREATE OR REPLACE TABLE kernel_name (
    name_id INTEGER, name VARCHAR, bucket VARCHAR, rule INTEGER, pattern VARCHAR, operation VARCHAR,
    implementation VARCHAR, synchronising BOOLEAN, fused BOOLEAN, barrier_end BOOLEAN, ranks_in_name INTEGER
);
