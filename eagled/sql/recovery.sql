-- name: meta
-- Which history this database is, and how far it got.
SELECT lineage, seq, epoch, clean FROM meta;

-- name: bump_seq
-- Every writer transaction raises it.
UPDATE meta SET seq = seq + 1 RETURNING seq;

-- name: new_epoch
-- A start has a number of its own.
UPDATE meta SET epoch = :epoch, clean = 0;

-- name: set_clean
-- The daemon stopped in order.
UPDATE meta SET clean = 1;

-- name: new_lineage
-- From here on it is another history.
UPDATE meta SET lineage = :lineage, epoch = :epoch, clean = 0;

-- name: in_flight
-- Claims of a daemon that is gone.
SELECT id, attempt, epoch FROM sample WHERE state = 1 ORDER BY id;

-- name: recover_generating
-- They are queued again; nobody is charged.
UPDATE sample SET state = 0, rank = 0, epoch = NULL, updated_ms = :now WHERE state = 1;

-- name: recover_extracting
-- Extraction starts again.
UPDATE sample SET state = 3, extract_epoch = NULL, worker = NULL, updated_ms = :now WHERE state = 4;

-- name: clamp_retries
-- No wait is longer than the longest back-off, whatever the clock did meanwhile.
UPDATE sample SET not_before_ms = :latest WHERE state = 2 AND not_before_ms > :latest;
