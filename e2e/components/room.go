package components

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// needed is what a clean clone needs: most of it is Go's build cache, the rest are the stores of control planes and test programs.
const needed = 20 << 30

// least is what the tests of an unchanged clone write while they run. Below it, etcd and the compiler fail in ways that do not name the disk.
const least = 6 << 30

// CheckRoom returns an error that names a folder whose filesystem has too little room for the tests: Go's build cache or that of temporary
// files. It writes to stderr if there may be too little for a clean clone.
func CheckRoom(ctx context.Context) error {
	cache, err := command(ctx, nil, "", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env GOCACHE: %w", err)
	}
	for _, folder := range []string{strings.TrimSpace(string(cache)), os.TempDir()} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		var fs syscall.Statfs_t
		if err := syscall.Statfs(folder, &fs); err != nil {
			return &os.PathError{Op: "statfs", Path: folder, Err: err}
		}
		warning, err := judgeRoom(folder, fs.Bavail*uint64(fs.Bsize))
		if err != nil {
			return err
		}
		if warning != "" {
			fmt.Fprintln(os.Stderr, warning)
			return nil
		}
	}
	return nil
}

// judgeRoom says what free bytes in a folder are enough for.
func judgeRoom(folder string, free uint64) (warning string, err error) {
	const gib = 1 << 30
	text := fmt.Sprintf("%s has %.1f GiB free", folder, float64(free)/gib)
	switch {
	case free < least:
		return "", fmt.Errorf("%s, builds and tests need %d GiB; `go clean -cache` frees Go's build cache, which is then built anew", text, least/gib)
	case free < needed:
		return fmt.Sprintf("%s; a clean clone may need %d GiB", text, needed/gib), nil
	}
	return "", nil
}
