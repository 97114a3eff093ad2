package mongod

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
)

// ErrNotFound is returned when no mongod is installed here.
var ErrNotFound = errors.New("no mongod on PATH or in the project's cache")

// WheelVersion is the version of the mongod that scripts/fetch-mongod leaves
// in the cache.
const WheelVersion = "6.0.5"

// Find returns the path of a mongod: the one on PATH, else the newest of those
// in the project's cache.
func Find() (string, error) {
	if path, err := exec.LookPath("mongod"); err == nil {
		return filepath.Abs(path)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", ErrNotFound
	}
	found, _ := filepath.Glob(filepath.Join(cache, "mongostore", "mongod-*", "mongod"))
	sort.Strings(found)
	for i := len(found) - 1; i >= 0; i-- {
		if _, err := exec.LookPath(found[i]); err == nil {
			return found[i], nil
		}
	}
	return "", ErrNotFound
}

// CacheFolder is where scripts/fetch-mongod puts its mongod.
func CacheFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "mongostore", "mongod-"+WheelVersion), nil
}
