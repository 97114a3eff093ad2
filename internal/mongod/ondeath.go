package mongod

import (
	"io"
	"os/exec"
)

// OnDeath has a command run once this process has ended, however it ended.
// Release takes that back.
func OnDeath(command ...string) (release func(), err error) {
	const script = `read -r word; [ "$word" = release ] || exec "$@"`
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "mongostore-on-death"}, command...)...)
	detach(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	kept.Store(stdin, nil)
	return func() {
		kept.Delete(stdin)
		_, _ = io.WriteString(stdin, "release\n")
		_ = cmd.Wait()
	}, nil
}
