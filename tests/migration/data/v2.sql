-- A database as schema version 2 wrote it; never edit.
PRAGMA page_size = 4096;
PRAGMA auto_vacuum = 2;
PRAGMA application_id = 1700882284;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE answer (id INTEGER PRIMARY KEY, z BLOB NOT NULL) STRICT;
INSERT INTO "answer" VALUES(7,X'28B52FFD200C610000070000000800000009000000');
CREATE TABLE changed (
    seq INTEGER NOT NULL,
    sample_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    lane_id INTEGER,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    checked INTEGER NOT NULL,
    reason TEXT,
    detail TEXT,
    PRIMARY KEY (seq, sample_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "changed" VALUES(3,6,0,1,0,0,0,NULL,NULL);
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY,
    uid BLOB NOT NULL UNIQUE CHECK (length(uid) = 16),
    dedup BLOB NOT NULL,
    dataset_id INTEGER NOT NULL REFERENCES dataset (id),
    source_id TEXT,
    z BLOB
) STRICT;
INSERT INTO "conversation" VALUES(1,X'60B6D1AF30DFAF3582010CE6F9CAE155',X'24227BEF1C3D58B114F9A5BE69083E70',1,'0',NULL);
INSERT INTO "conversation" VALUES(2,X'51AEBB63C009B3AA2A6A6EFEF911FD90',X'475ACD71AF36ACD789E7BAFD868EC42C',1,'1',NULL);
INSERT INTO "conversation" VALUES(3,X'1322CC52CC2A7CDBBE009B12577ED65D',X'7C29C8755DD0D9476D36AF15F5D15209',1,'2',NULL);
INSERT INTO "conversation" VALUES(4,X'2316A56F561F60D5DC7F7FB5D085843F',X'979EC203712D49B5D565A5DD977AE2D1',1,'3',NULL);
INSERT INTO "conversation" VALUES(5,X'E3324A0E2FE836915205909468F1FE28',X'33AD570ADA0C79FFD87A2ED421C12C1C',1,'4',NULL);
INSERT INTO "conversation" VALUES(6,X'543CC5A8E74311DEF44AAC6DB2E69475',X'78E84BA87BBF9ECB4A93A514AAFAA835',1,'5',NULL);
INSERT INTO "conversation" VALUES(7,X'665FC61D2D404841E141CC7D9B38B76B',X'55138E5A58E184C619252D894C1ADABA',2,'0',X'626F6479');
CREATE TABLE counter (
    lane_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    dataset_id INTEGER NOT NULL,
    n INTEGER NOT NULL CHECK (n >= 0),
    PRIMARY KEY (lane_id, state, dataset_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "counter" VALUES(0,6,2,1);
INSERT INTO "counter" VALUES(1,0,1,3);
INSERT INTO "counter" VALUES(1,0,2,0);
INSERT INTO "counter" VALUES(1,1,1,0);
INSERT INTO "counter" VALUES(1,1,2,0);
INSERT INTO "counter" VALUES(1,3,2,1);
INSERT INTO "counter" VALUES(1,7,1,1);
INSERT INTO "counter" VALUES(1,8,1,1);
INSERT INTO "counter" VALUES(2,0,1,1);
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
, live_limit INTEGER CHECK (live_limit > 0), live_share INTEGER CHECK (live_share BETWEEN 1 AND 100)) STRICT;
INSERT INTO "dataset" VALUES(1,'a',0,NULL,0,'regenerate','key',10,10,0,0,4,3);
INSERT INTO "dataset" VALUES(2,'b',5,NULL,0,'regenerate','key',10,10,0,0,NULL,NULL);
CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    uid INTEGER NOT NULL,
    undo TEXT
) STRICT;
INSERT INTO "event" VALUES(1,1800000000000,'lane_changed','long','running, limit 16 -> running, limit 9, share 0.25',1000,'{"name":"long","paused":0,"live_limit":null,"live_share":null}');
INSERT INTO "event" VALUES(2,1800000000000,'dataset_changed','a','running, priority 0 -> running, priority 0, limit 4, share 3',1000,'{"name":"a","paused":0,"live_priority":null,"live_limit":null,"live_share":null}');
INSERT INTO "event" VALUES(3,1800000000000,'samples_rejected','6','1 rejected: not wanted',1000,'{"samples":true}');
INSERT INTO "event" VALUES(4,1800000000000,'setting_changed','hold','paused',1000,'{"key":"hold","value":""}');
CREATE TABLE failure (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sample_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
INSERT INTO "failure" VALUES(1,2,1,1800000000000,'OutputRejectedError','no end');
CREATE TABLE lane (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (length(name) > 0),
    ord INTEGER NOT NULL,
    context INTEGER NOT NULL CHECK (context >= 0),
    config_limit INTEGER NOT NULL CHECK (config_limit >= 0),
    live_limit INTEGER CHECK (live_limit >= 0),
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    configured INTEGER NOT NULL DEFAULT 1 CHECK (configured IN (0, 1))
, live_share REAL CHECK (live_share > 0)) STRICT;
INSERT INTO "lane" VALUES(1,'short',0,10000,200,NULL,0,1,NULL);
INSERT INTO "lane" VALUES(2,'long',1,0,16,9,0,1,0.25);
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    lineage BLOB NOT NULL CHECK (length(lineage) = 16),
    seq INTEGER NOT NULL CHECK (seq >= 0),
    epoch INTEGER NOT NULL CHECK (epoch >= 0),
    clean INTEGER NOT NULL CHECK (clean IN (0, 1))
) STRICT;
INSERT INTO "meta" VALUES(1,X'B1F2D3A34EAC6D48F018FC7C380F2142',16,1,1);
CREATE TABLE partial (
    id INTEGER PRIMARY KEY,
    n INTEGER NOT NULL CHECK (n > 0),
    crc INTEGER NOT NULL,
    z BLOB NOT NULL
) STRICT;
INSERT INTO "partial" VALUES(1,4,4220600828,X'28B52FFD201081000004000000050000000600000007000000');
CREATE TABLE prompt (id INTEGER PRIMARY KEY, z BLOB NOT NULL) STRICT;
INSERT INTO "prompt" VALUES(1,X'28B52FFD200C610000010000000200000003000000');
INSERT INTO "prompt" VALUES(2,X'28B52FFD200C610000010000000200000004000000');
INSERT INTO "prompt" VALUES(3,X'28B52FFD200C610000010000000200000005000000');
INSERT INTO "prompt" VALUES(4,X'28B52FFD200C610000010000000200000006000000');
INSERT INTO "prompt" VALUES(5,X'28B52FFD200C610000010000000200000007000000');
INSERT INTO "prompt" VALUES(6,X'28B52FFD200C610000010000000200000008000000');
INSERT INTO "prompt" VALUES(7,X'28B52FFD200C610000010000000200000003000000');
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
    updated_ms INTEGER NOT NULL, extended INTEGER NOT NULL DEFAULT 0 CHECK (extended >= 0),
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
INSERT INTO "sample" VALUES(1,X'05C77FF559C60DC00957C3FBDEEAD83A',1,1,0,2,0,0,1,0,0,NULL,NULL,3,2967478931,NULL,NULL,NULL,NULL,500,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000000000,1);
INSERT INTO "sample" VALUES(2,X'748A21E2AF99EA93FA5C46ABA6B8B6CD',2,1,0,1,7,1,1,1,0,NULL,NULL,3,758585898,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,'OutputRejectedError','no end',1800000000000,0);
INSERT INTO "sample" VALUES(3,X'9D8BE610A4543AD98D8C2C37FBB0D030',3,1,0,1,0,1,0,0,0,NULL,NULL,3,2508946767,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000000000,0);
INSERT INTO "sample" VALUES(4,X'1662118369B1627CD964791FAE5C3370',4,1,0,1,0,1,0,0,0,NULL,NULL,3,2269041313,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000000000,0);
INSERT INTO "sample" VALUES(5,X'97286BB42378F692348755EB3F7C06B8',5,1,0,1,0,1,0,0,0,NULL,NULL,3,1065530820,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000000000,0);
INSERT INTO "sample" VALUES(6,X'CD65E36784C0688BA99CF68AC254BB1C',6,1,0,1,8,1,0,0,0,NULL,NULL,3,1742841234,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,'operator','not wanted',1800000000000,0);
INSERT INTO "sample" VALUES(7,X'C723A14418142D9958C5FCC1F3D7A0A5',7,2,0,1,3,1,1,0,0,NULL,NULL,3,2967478931,3,2711649247,'stop','server-a',500,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000000000,0);
INSERT INTO "sample" VALUES(8,X'F17DD7CB42CB502DF051C68DEF4CF9CE',7,2,1,NULL,6,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL,NULL,NULL,NULL,NULL,NULL,1800000000000,0);
CREATE TABLE setting (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    set_by INTEGER NOT NULL,
    set_ms INTEGER NOT NULL
) STRICT;
INSERT INTO "setting" VALUES('hold','paused',1000,1800000000000);
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
INSERT INTO "transition" VALUES(8,3);
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
CREATE TRIGGER sample_partial AFTER UPDATE OF state ON sample
WHEN OLD.extended > 0 AND NEW.state NOT IN (0, 1, 2)
BEGIN
    DELETE FROM partial WHERE id = NEW.id;
END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('failure',1);
INSERT INTO "sqlite_sequence" VALUES('event',4);
COMMIT;
