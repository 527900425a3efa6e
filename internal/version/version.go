// Package version returns the release of a program of this repository.
package version

import "runtime/debug"

// release is set by the linker in builds for a release:
//
//	go build -ldflags "-X=github.com/pitcrew-dev/pitcrew/internal/version.release=v0.2.0" ./remediator
var release string

// String returns the release that the program was built for, such as "v0.2.0". Without one it returns what the go
// command recorded: the version of the module after `go install ...@v0.2.0`, a pseudo-version that ends with the commit
// after a build in a clone, and "(devel)" where it recorded nothing.
func String() string {
	info, ok := debug.ReadBuildInfo()
	return from(release, info, ok)
}

func from(release string, info *debug.BuildInfo, ok bool) string {
	switch {
	case release != "":
		return release
	case ok && info.Main.Version != "":
		return info.Main.Version
	default:
		return "(devel)"
	}
}
