// Command etcd is upstream's own, for end-to-end tests. It is in a separate
// module because it needs other versions of some libraries than Kubernetes does.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
