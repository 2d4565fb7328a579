-- name: extract_ids
-- Accepted answers without hidden states, oldest first.
SELECT id, n_prompt + n_output FROM sample WHERE state = 3 AND checked = 1 ORDER BY id LIMIT :n;

-- name: extract_these
-- Those of the given samples that are accepted answers without hidden states, in the given order.
SELECT s.id, s.n_prompt + s.n_output
FROM json_each(:ids) AS f CROSS JOIN sample AS s ON s.id = f.value
WHERE s.state = 3 AND s.checked = 1;

-- name: extract_waiting
-- Accepted answers without hidden states, in chunks.
SELECT id, uid FROM sample
WHERE state = 3 AND checked = 1 AND id > :after ORDER BY id LIMIT :n;

-- name: claim_extract
-- Hand one sample to an extraction worker.
UPDATE sample
SET state = 4, extract_attempt = extract_attempt + 1, extract_epoch = :epoch, worker = :worker,
    updated_ms = :now
WHERE id = :id AND state = 3 AND checked = 1
RETURNING id, extract_attempt, uid, n_prompt, prompt_crc, n_output, output_crc,
    (SELECT name FROM dataset WHERE dataset.id = sample.dataset_id),
    (SELECT z FROM prompt WHERE prompt.id = sample.id),
    (SELECT z FROM answer WHERE answer.id = sample.id);

-- name: live_extracts
-- Which of these (id, extract_attempt, epoch) still hold their claim.
SELECT s.id, s.extract_attempt, s.extract_epoch, s.uid, s.output_crc
FROM json_each(:fences) AS f
CROSS JOIN sample AS s ON s.id = f.value ->> 0
WHERE s.state = 4 AND s.extract_attempt = f.value ->> 1 AND s.extract_epoch = f.value ->> 2;

-- name: shard_by_name
-- A shard the store knows.
SELECT id, sha256, dropped FROM shard WHERE name = :name;

-- name: insert_shard
-- A shard file that is on disk under its final name.
INSERT INTO shard (name, sha256, file_bytes, n_samples, n_tokens, manifest_hash, created_ms)
VALUES (:name, :sha256, :file_bytes, :n_samples, :n_tokens, :manifest_hash, :now)
RETURNING id;

-- name: extracted
-- A sample's states are in a shard.
UPDATE sample
SET state = 5, shard_id = ?, shard_index = ?, extract_epoch = NULL, worker = NULL, updated_ms = ?
WHERE id = ? AND state = 4;

-- name: count_in_shard
-- Samples whose states are in one shard.
SELECT count(*) FROM sample WHERE shard_id = :id;

-- name: unextract
-- A sample goes back to wait for extraction.
UPDATE sample SET state = 3, extract_epoch = NULL, worker = NULL, updated_ms = ?
WHERE id = ? AND state = 4;

-- name: fail_extract
-- No usable hidden states can be had of this sample.
UPDATE sample
SET state = 7, extract_epoch = NULL, worker = NULL, reason = 'bad_states', detail = :detail,
    updated_ms = :now
WHERE id = :id AND state = 4;

-- name: extracting_of
-- What one worker holds.
SELECT id FROM sample WHERE state = 4 AND worker = :worker LIMIT 500;

-- name: extracting_all
-- What all workers hold.
SELECT id FROM sample WHERE state = 4 LIMIT 500;

-- name: shard_members
-- Samples of one shard.
SELECT id FROM sample WHERE shard_id = :id LIMIT 200;

-- name: leave_shard
-- A sample's shard is gone.
UPDATE sample SET state = 3, shard_id = NULL, shard_index = NULL, updated_ms = ?
WHERE id = ? AND state = 5;

-- name: drop_shard
-- Say why a shard no longer counts.
UPDATE shard SET dropped = :reason WHERE id = :id AND dropped IS NULL;

-- name: states_of
-- The states of some samples; those that are gone are left out.
SELECT s.id, s.state FROM json_each(:ids) AS f CROSS JOIN sample AS s ON s.id = f.value;
