-- name: lane_rows
-- All lanes in order.
SELECT id, name, ord, context, ifnull(live_limit, config_limit), paused, live_share
FROM lane WHERE configured = 1 ORDER BY ord, id;

-- name: lane_by_name
-- One lane with what an operator set.
SELECT id, name, ord, context, ifnull(live_limit, config_limit), paused, live_share,
    live_limit
FROM lane WHERE name = :name;

-- name: unconfigure_lanes
-- Forget which lanes the configuration has, before it is read again.
UPDATE lane SET configured = 0;

-- name: upsert_lane
-- A lane of the configuration; pause and limit set by an operator stay.
INSERT INTO lane (name, ord, context, config_limit, paused)
VALUES (:name, :ord, :context, :limit, :paused)
ON CONFLICT (name) DO UPDATE
SET ord = excluded.ord, context = excluded.context, config_limit = excluded.config_limit,
    configured = 1;

-- name: homeless
-- Unstarted rows whose lane is no longer configured.
SELECT s.id, s.n_prompt, s.state FROM lane AS l
JOIN sample AS s ON s.lane_id = l.id
WHERE l.configured = 0 AND s.state = 0 LIMIT 200;

-- name: move_lane
-- Put an unstarted row into another lane.
UPDATE sample SET lane_id = (SELECT id FROM lane WHERE name = :lane), updated_ms = :now
WHERE id = :id AND state = 0;

-- name: dataset_by_name
-- One dataset with what an operator set.
SELECT id, name, ifnull(live_priority, config_priority), paused, mode, prep_key,
    n_rows, n_kept, n_rejected, complete, live_limit, live_share, live_priority
FROM dataset WHERE name = :name;

-- name: dataset_rows
-- All datasets.
SELECT id, name, ifnull(live_priority, config_priority), paused, mode, prep_key,
    n_rows, n_kept, n_rejected, complete, live_limit, live_share
FROM dataset ORDER BY id;

-- name: insert_dataset
-- A prepared dataset enters.
INSERT INTO dataset (name, config_priority, mode, prep_key, n_rows, n_kept, n_rejected)
VALUES (:name, :priority, :mode, :prep_key, :n_rows, :n_kept, :n_rejected)
RETURNING id;

-- name: update_dataset_priority
-- The configuration's priority may change between runs.
UPDATE dataset SET config_priority = :priority WHERE id = :id AND config_priority <> :priority;

-- name: finish_dataset
-- All conversations of a dataset are in.
UPDATE dataset SET complete = 1 WHERE id = :id AND complete = 0;

-- name: conversation_by_uid
-- Which dataset a conversation came with.
SELECT dataset_id FROM conversation WHERE uid = ?;

-- name: dedup_elsewhere
-- Whether another dataset holds the same conversation.
SELECT 1 FROM conversation WHERE dedup = ? AND dataset_id <> ? LIMIT 1;

-- name: sample_known
-- Whether a sample of this identity exists.
SELECT 1 FROM sample WHERE uid = ?;

-- name: next_conversation_id
-- First free number.
SELECT ifnull(max(id), 0) + 1 FROM conversation;

-- name: next_sample_id
-- First free number.
SELECT ifnull(max(id), 0) + 1 FROM sample;

-- name: insert_conversation
-- One conversation; z only where later turns or tools need it.
INSERT INTO conversation (id, uid, dedup, dataset_id, source_id, z) VALUES (?, ?, ?, ?, ?, ?);

-- name: insert_sample
-- One turn, in the state it starts from.
INSERT INTO sample (id, uid, conversation_id, dataset_id, turn, lane_id, state, rank,
    n_prompt, prompt_crc, n_output, output_crc, finish, checked, updated_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
