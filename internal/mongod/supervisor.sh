# Runs one mongod for an owner that holds the other end of this shell's stdin.
# A line starts the mongod (again); the end of the input, which also comes when
# the owner is killed, kills it and removes its folder.
#   sh -c SCRIPT mongostore-mongod FOLDER COMMAND...
# Says "up PID" and "exit CODE" on stdout.
dir=$1
shift
trap '' PIPE # the owner may be gone before the last word
mkdir -m 700 "$dir" "$dir/data" || exit 1
run() {
	"$@" >>"$dir/out" 2>&1 &
	echo $! >"$dir/pid"
	: >"$dir/started"
	echo "up $!"
	wait $!
	code=$?
	rm -f "$dir/pid"
	echo "exit $code"
}
while read -r _; do
	rm -f "$dir/started"
	run "$@" </dev/null &
	# the pid must be on file before the end of the input can be seen
	until [ -e "$dir/started" ]; do sleep 0.01; done
done
if pid=$(cat "$dir/pid" 2>/dev/null) && [ -n "$pid" ]; then
	kill -9 "$pid" 2>/dev/null
fi
wait
rm -rf "$dir" || { sleep 1 && rm -rf "$dir"; }
