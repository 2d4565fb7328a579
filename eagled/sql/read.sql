-- name: counters
-- Samples by dataset, lane and state.
SELECT d.name, l.name, c.state, c.n
FROM counter AS c JOIN dataset AS d ON d.id = c.dataset_id LEFT JOIN lane AS l ON l.id = c.lane_id
WHERE c.n > 0;

-- name: count_really
-- The same by counting; for checks only.
SELECT ifnull(lane_id, 0), state, dataset_id, count(*) FROM sample GROUP BY 1, 2, 3;

-- name: counters_raw
-- The counters by number, as `count_really` gives them.
SELECT lane_id, state, dataset_id, n FROM counter WHERE n > 0;

-- name: shards
-- All shards.
SELECT name, sha256, file_bytes, n_samples, n_tokens, manifest_hash, created_ms, dropped
FROM shard ORDER BY id;

-- name: shard_members_of
-- Which samples are in a shard, in file order.
SELECT s.id, s.uid, s.shard_index, s.n_prompt, s.n_output, s.output_crc
FROM sample AS s
WHERE s.shard_id = (SELECT id FROM shard WHERE name = :name) ORDER BY s.shard_index;

-- name: shard_conversations
-- Which samples' states a shard holds, with their conversations, in file order.
SELECT s.uid, c.uid
FROM sample AS s JOIN conversation AS c ON c.id = s.conversation_id
WHERE s.shard_id = (SELECT id FROM shard WHERE name = :name) ORDER BY s.shard_index;

-- name: sample_by_uid
-- Everything known of one sample.
SELECT s.id, s.uid, d.name, l.name, c.uid, c.source_id, s.turn, s.state, s.rank, s.attempt,
    s.failures, s.crashes, s.n_prompt, s.n_output, s.finish, s.server, s.elapsed_ms, s.checked,
    s.extract_attempt, h.name, s.shard_index, s.reason, s.detail, s.updated_ms, s.extended
FROM sample AS s
JOIN dataset AS d ON d.id = s.dataset_id
JOIN conversation AS c ON c.id = s.conversation_id
LEFT JOIN lane AS l ON l.id = s.lane_id
LEFT JOIN shard AS h ON h.id = s.shard_id
WHERE s.uid = :uid;

-- name: payload
-- Stored ids of one sample.
SELECT s.prompt_crc, s.n_prompt, s.output_crc, s.n_output,
    (SELECT z FROM prompt WHERE prompt.id = s.id), (SELECT z FROM answer WHERE answer.id = s.id)
FROM sample AS s WHERE s.id = :id;

-- name: failures_of
-- The failed attempts of one sample.
SELECT attempt, at_ms, kind, detail FROM failure WHERE sample_id = :id ORDER BY id DESC LIMIT 50;

-- name: failure_groups
-- Given-up samples by dataset, state and reason, with the newest as example.
SELECT d.name, g.state, g.reason, g.n, s.uid, s.detail
FROM (SELECT dataset_id, state, reason, count(*) AS n, max(id) AS example
      FROM sample WHERE state IN (7, 8, 9) GROUP BY dataset_id, state, reason) AS g
JOIN dataset AS d ON d.id = g.dataset_id
JOIN sample AS s ON s.id = g.example
ORDER BY g.n DESC LIMIT :n;

-- name: conversation_body
-- The zstd JSON of a conversation.
SELECT z FROM conversation WHERE id = :id;

-- name: freeze
-- Accepted answers of one dataset in a chunk; the literal condition lets the merge index apply.
SELECT id, attempt, output_crc FROM sample
WHERE dataset_id = :dataset_id AND id > :after AND state IN (3, 4, 5) AND checked = 1
ORDER BY id LIMIT 500;

-- name: bodies
-- Answers with their prompts, by id.
SELECT s.id, s.attempt, s.uid, d.name, c.uid, s.turn, s.finish,
    p.z, s.prompt_crc, s.n_prompt, a.z, s.output_crc, s.n_output
FROM json_each(:ids) AS j
CROSS JOIN sample AS s ON s.id = j.value
JOIN dataset AS d ON d.id = s.dataset_id
JOIN conversation AS c ON c.id = s.conversation_id
LEFT JOIN prompt AS p ON p.id = s.id
LEFT JOIN answer AS a ON a.id = s.id
WHERE s.state IN (3, 4, 5) AND s.checked = 1;

-- name: lengths
-- Dataset, lane, state and lengths of the next samples.
SELECT s.id, d.name, l.name, s.state, s.n_prompt, s.n_output
FROM (SELECT id, dataset_id, lane_id, state, n_prompt, n_output FROM sample
      WHERE id > :after ORDER BY id LIMIT 500) AS s
JOIN dataset AS d ON d.id = s.dataset_id LEFT JOIN lane AS l ON l.id = s.lane_id
ORDER BY s.id;

-- name: last_sample
-- The highest number of a sample.
SELECT max(id) FROM sample;

-- name: last_event
-- The newest event.
SELECT max(seq) FROM event;

-- name: check_chunk
-- Stored ids of the next rows, with what they must match.
SELECT s.id, s.state, p.z, s.prompt_crc, a.z, s.output_crc
FROM sample AS s LEFT JOIN prompt AS p ON p.id = s.id LEFT JOIN answer AS a ON a.id = s.id
WHERE s.id > :after ORDER BY s.id LIMIT 500;

-- name: lately_generated
-- What answers of each dataset were like lately: tokens and milliseconds.
SELECT d.name, avg(r.n_output), avg(r.elapsed_ms), count(*)
FROM dataset AS d JOIN sample AS r ON r.id IN (
    SELECT s.id FROM sample AS s WHERE s.dataset_id = d.id AND s.state IN (3, 4, 5)
    ORDER BY s.id DESC LIMIT 500)
GROUP BY d.id;
