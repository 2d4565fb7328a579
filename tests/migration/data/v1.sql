-- A database as schema version 1 wrote it; never edit.
PRAGMA page_size = 4096;
PRAGMA auto_vacuum = 2;
PRAGMA application_id = 1700882284;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE answer (id INTEGER PRIMARY KEY, z BLOB NOT NULL) STRICT;
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    uid BLOB NOT NULL UNIQUE CHECK (length(uid) = 16),
    dedup BLOB NOT NULL,
    dataset_id INTEGER NOT NULL REFERENCES dataset (id),
    source_id TEXT,
    z BLOB
) STRICT;
INSERT INTO "conversation" VALUES(1,X'00000000000000000000000000000002',X'03',1,'row-1',NULL);
CREATE TABLE counter (
    lane_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    dataset_id INTEGER NOT NULL,
    n INTEGER NOT NULL CHECK (n >= 0),
    PRIMARY KEY (lane_id, state, dataset_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "counter" VALUES(1,0,1,1);
CREATE TABLE dataset (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    config_priority INTEGER NOT NULL,
    live_priority INTEGER,
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    mode TEXT NOT NULL CHECK (mode IN ('regenerate', 'native')),
    prep_key TEXT NOT NULL,
    n_rows INTEGER NOT NULL CHECK (n_rows >= 0),
    n_kept INTEGER NOT NULL CHECK (n_kept >= 0),
    n_rejected INTEGER NOT NULL CHECK (n_rejected >= 0),
    complete INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1))
) STRICT;
INSERT INTO "dataset" VALUES(1,'a',0,NULL,0,'regenerate','k',1,1,0,0);
CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    uid INTEGER NOT NULL,
    undo TEXT
) STRICT;
CREATE TABLE failure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sample_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    ord INTEGER NOT NULL,
    context INTEGER NOT NULL CHECK (context >= 0),
    config_limit INTEGER NOT NULL CHECK (config_limit >= 0),
    live_limit INTEGER CHECK (live_limit >= 0),
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    configured INTEGER NOT NULL DEFAULT 1 CHECK (configured IN (0, 1))
) STRICT;
INSERT INTO "lane" VALUES(1,'short',0,10000,200,NULL,0,1);
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    lineage BLOB NOT NULL CHECK (length(lineage) = 16),
    seq INTEGER NOT NULL CHECK (seq >= 0),
    epoch INTEGER NOT NULL CHECK (epoch >= 0),
    clean INTEGER NOT NULL CHECK (clean IN (0, 1))
) STRICT;
INSERT INTO "meta" VALUES(1,X'000102030405060708090A0B0C0D0E0F',9,3,1);
CREATE TABLE prompt (id INTEGER PRIMARY KEY, z BLOB NOT NULL) STRICT;
INSERT INTO "prompt" VALUES(1,X'00');
CREATE TABLE sample (
    id INTEGER PRIMARY KEY,
    uid BLOB NOT NULL UNIQUE CHECK (length(uid) = 16),
    conversation_id INTEGER NOT NULL REFERENCES conversation (id),
    dataset_id INTEGER NOT NULL REFERENCES dataset (id),
    turn INTEGER NOT NULL CHECK (turn >= 0),
    lane_id INTEGER REFERENCES lane (id),
    state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 9),
    rank INTEGER NOT NULL DEFAULT 1 CHECK (rank IN (0, 1)),
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    epoch INTEGER,
    not_before_ms INTEGER,
    n_prompt INTEGER CHECK (n_prompt > 0),
    prompt_crc INTEGER,
    n_output INTEGER CHECK (n_output > 0),
    output_crc INTEGER,
    finish TEXT CHECK (finish IN ('stop', 'length', 'native')),
    server TEXT,
    elapsed_ms INTEGER,
    checked INTEGER NOT NULL DEFAULT 0 CHECK (checked IN (0, 1)),
    extract_attempt INTEGER NOT NULL DEFAULT 0 CHECK (extract_attempt >= 0),
    extract_epoch INTEGER,
    worker TEXT,
    shard_id INTEGER REFERENCES shard (id),
    shard_index INTEGER,
    reason TEXT,
    detail TEXT,
    updated_ms INTEGER NOT NULL,
    CHECK ((n_prompt IS NULL) = (prompt_crc IS NULL)),
    CHECK ((n_output IS NULL) = (output_crc IS NULL)),
    CHECK ((n_output IS NULL) = (finish IS NULL)),
    CHECK ((state = 1) = (epoch IS NOT NULL)),
    CHECK ((state = 2) = (not_before_ms IS NOT NULL)),
    CHECK ((state = 4) = (worker IS NOT NULL)),
    CHECK ((state = 4) = (extract_epoch IS NOT NULL)),
    CHECK ((state = 5) = (shard_id IS NOT NULL)),
    CHECK ((shard_id IS NULL) = (shard_index IS NULL)),
    CHECK ((state IN (7, 8, 9)) = (reason IS NOT NULL)),
    CHECK (state NOT IN (0, 1, 2) OR (lane_id IS NOT NULL AND n_prompt IS NOT NULL)),
    CHECK (state NOT IN (3, 4, 5) OR (n_prompt IS NOT NULL AND n_output IS NOT NULL)),
    CHECK (state NOT IN (0, 1, 2, 6) OR n_output IS NULL),
    CHECK (state <> 6 OR n_prompt IS NULL),
    CHECK (state NOT IN (4, 5) OR checked = 1)
) STRICT;
INSERT INTO "sample" VALUES(1,X'00000000000000000000000000000001',1,1,0,1,0,1,2,0,0,NULL,NULL,1,1,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,5);
CREATE TABLE setting (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    set_by INTEGER NOT NULL,
    set_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE shard (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    sha256 TEXT NOT NULL CHECK (length(sha256) = 64),
    file_bytes INTEGER NOT NULL CHECK (file_bytes >= 0),
    n_samples INTEGER NOT NULL CHECK (n_samples >= 0),
    n_tokens INTEGER NOT NULL CHECK (n_tokens >= 0),
    manifest_hash TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    dropped TEXT
) STRICT;
CREATE TABLE transition (
    old INTEGER NOT NULL,
    new INTEGER NOT NULL,
    PRIMARY KEY (old, new)
) STRICT, WITHOUT ROWID;
INSERT INTO "transition" VALUES(0,1);
INSERT INTO "transition" VALUES(0,7);
INSERT INTO "transition" VALUES(0,8);
INSERT INTO "transition" VALUES(1,0);
INSERT INTO "transition" VALUES(1,2);
INSERT INTO "transition" VALUES(1,3);
INSERT INTO "transition" VALUES(1,7);
INSERT INTO "transition" VALUES(1,8);
INSERT INTO "transition" VALUES(2,0);
INSERT INTO "transition" VALUES(2,8);
INSERT INTO "transition" VALUES(3,4);
INSERT INTO "transition" VALUES(3,8);
INSERT INTO "transition" VALUES(4,3);
INSERT INTO "transition" VALUES(4,5);
INSERT INTO "transition" VALUES(4,7);
INSERT INTO "transition" VALUES(5,3);
INSERT INTO "transition" VALUES(5,8);
INSERT INTO "transition" VALUES(6,0);
INSERT INTO "transition" VALUES(6,8);
INSERT INTO "transition" VALUES(6,9);
INSERT INTO "transition" VALUES(7,0);
INSERT INTO "transition" VALUES(7,3);
INSERT INTO "transition" VALUES(8,0);
INSERT INTO "transition" VALUES(8,6);
INSERT INTO "transition" VALUES(9,6);
CREATE INDEX conversation_dedup ON conversation (dedup);
CREATE UNIQUE INDEX sample_turn ON sample (conversation_id, turn);
CREATE INDEX sample_claim ON sample (lane_id, dataset_id, rank, id) WHERE state = 0;
CREATE INDEX sample_generating ON sample (id) WHERE state = 1;
CREATE INDEX sample_retry ON sample (not_before_ms) WHERE state = 2;
CREATE INDEX sample_unchecked ON sample (id) WHERE state = 3 AND checked = 0;
CREATE INDEX sample_extract ON sample (id) WHERE state = 3 AND checked = 1;
CREATE INDEX sample_extracting ON sample (worker) WHERE state = 4;
CREATE INDEX sample_merge ON sample (dataset_id, id) WHERE state IN (3, 4, 5);
CREATE INDEX sample_given_up ON sample (dataset_id, state, reason, id) WHERE state IN (7, 8, 9);
CREATE INDEX sample_shard ON sample (shard_id) WHERE shard_id IS NOT NULL;
CREATE TRIGGER sample_guard BEFORE UPDATE OF state ON sample
WHEN OLD.state <> NEW.state
    AND NOT EXISTS (SELECT 1 FROM transition WHERE old = OLD.state AND new = NEW.state)
BEGIN
    SELECT RAISE(ABORT, 'illegal sample transition');
END;
CREATE TRIGGER sample_attempt BEFORE UPDATE OF attempt, extract_attempt ON sample
WHEN NEW.attempt < OLD.attempt OR NEW.extract_attempt < OLD.extract_attempt
BEGIN
    SELECT RAISE(ABORT, 'attempt never falls');
END;
CREATE TRIGGER sample_count_insert AFTER INSERT ON sample
BEGIN
    INSERT INTO counter (lane_id, state, dataset_id, n)
    VALUES (ifnull(NEW.lane_id, 0), NEW.state, NEW.dataset_id, 1)
    ON CONFLICT (lane_id, state, dataset_id) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER sample_count_move AFTER UPDATE OF state, lane_id ON sample
WHEN OLD.state <> NEW.state OR OLD.lane_id IS NOT NEW.lane_id
BEGIN
    UPDATE counter SET n = n - 1
    WHERE lane_id = ifnull(OLD.lane_id, 0) AND state = OLD.state AND dataset_id = OLD.dataset_id;
    INSERT INTO counter (lane_id, state, dataset_id, n)
    VALUES (ifnull(NEW.lane_id, 0), NEW.state, NEW.dataset_id, 1)
    ON CONFLICT (lane_id, state, dataset_id) DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER sample_count_delete AFTER DELETE ON sample
BEGIN
    UPDATE counter SET n = n - 1
    WHERE lane_id = ifnull(OLD.lane_id, 0) AND state = OLD.state AND dataset_id = OLD.dataset_id;
END;
CREATE INDEX failure_sample ON failure (sample_id, id);
CREATE INDEX event_undo ON event (seq) WHERE undo IS NOT NULL;
COMMIT;
