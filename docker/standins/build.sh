#!/bin/sh
# Stand-ins for the images that docker/ and `pytest --allocator-backend=containers` name, for an engine that cannot pull
# them, and for versions of Kafka that nobody publishes an image of. They are built from Debian packages and from the jars
# of `allocator cluster fetch`.
#   docker/standins/build.sh                              all that the Dockerfiles and the compose files name
#   docker/standins/build.sh zookeeper 4.1.1 0.9.0.1      servers for the containers backend
#   docker/standins/build.sh python                       only what docker/Dockerfile is based on
# Needs root, debootstrap and a Docker engine. Stand-ins have the very names of the images; an image that the engine has
# already stays as it is. Kafka 3.9.1 and newer take the names of the published images, other versions
# allocator/kafka:VERSION. MIRROR is where debootstrap gets packages (default: its own). PIP_CERT or SSL_CERT_FILE is the
# file of authorities that pip and Python trust inside (default: those of this machine).
# Set TESTCONTAINERS_RYUK_DISABLED=true for the containers backend: its reaper is an image to be pulled as well.
set -eu

PYTHON=python:3.13-slim
JAVA=eclipse-temurin:17-jre
CACHE=${ALLOCATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/allocator}
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt
case "${1:-}" in -*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit ;; esac
[ $# -gt 0 ] || set -- python java zookeeper 4.1.1
for each in "$@"; do
    case $each in
    python | java | zookeeper | [0-9]*.[0-9]*) ;;
    *)
        echo "$each is none of: python, java, zookeeper, a version of Kafka" >&2
        exit 2
        ;;
    esac
done

work=$(mktemp -d)
trap 'umount -q "$work/root/proc" "$work/root/sys" 2>/dev/null || true; rm -rf "$work"' EXIT

has() {
    docker image inspect "$1" >/dev/null 2>&1
}

# base NAME SUITE PACKAGES [OPTION...]: a Debian of these packages; the options are those of `docker import`
base() {
    if has "$1"; then
        echo "$1 is there"
        return
    fi
    name=$1
    debootstrap --variant=minbase --include="ca-certificates,$3" "$2" "$work/root" ${MIRROR:+"$MIRROR"} >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        exit 1
    }
    shift 3
    bundle=${PIP_CERT:-${SSL_CERT_FILE:-$CERTIFICATES}}
    [ ! -f "$bundle" ] || cp "$bundle" "$work/root$CERTIFICATES"
    # as in the images that they stand for: `python` is a command, and pip may install outside of a virtual environment
    [ ! -e "$work/root/usr/bin/python3" ] || ln -sf python3 "$work/root/usr/bin/python"
    rm -f "$work"/root/usr/lib/python3*/EXTERNALLY-MANAGED "$work"/root/var/cache/apt/archives/*.deb
    tar -C "$work/root" -c . | docker import \
        --change "ENV PIP_CERT=$CERTIFICATES SSL_CERT_FILE=$CERTIFICATES" "$@" - "$name" >/dev/null
    rm -rf "$work/root"
    echo "$name"
}

# image JARS NAME...: what is in $work/bin, and the jars, under each of the names. The entry point makes settings out of
# the environment, as those of the published images do, and takes no arguments.
image() {
    jars=$1
    shift
    [ -d "$jars" ] || {
        echo "$jars does not exist: run \`allocator cluster fetch\` first" >&2
        exit 1
    }
    has "$JAVA" || base "$JAVA" bookworm openjdk-17-jre-headless
    cp -r "$jars" "$work/libs"
    [ ! -f "$work/kafka-tools.jar" ] || mv "$work/kafka-tools.jar" "$work/libs"
    cat >"$work/Dockerfile" <<END
FROM $JAVA
RUN useradd --system --uid 1000 standin && install --directory --owner=1000 --mode=1777 /data
COPY bin /opt/kafka/bin
COPY libs /opt/kafka/libs
COPY log4j.properties /opt/kafka/config/
ENV PATH=/opt/kafka/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
USER 1000
ENTRYPOINT ["entrypoint.sh"]
END
    for name in "$@"; do
        if has "$name"; then
            echo "$name is there"
        else
            docker build --quiet --tag "$name" "$work" >/dev/null
            echo "$name"
        fi
    done
    rm -rf "$work/libs" "$work/bin"
}

# script NAME: a program of the image, read from stdin. Its `run` becomes a class of the jars, so that signals reach it.
script() {
    mkdir -p "$work/bin"
    {
        printf '#!/bin/bash\nset -eu\n'
        echo "run() { exec java -Dstandin.level=\${level:-INFO} \"-Dlog4j.configuration=file:/opt/kafka/config/log4j.properties\" -cp '/opt/kafka/libs/*' \"\$@\"; }"
        cat
    } >"$work/bin/$1"
    chmod 755 "$work/bin/$1"
}

cat >"$work/log4j.properties" <<'END'
log4j.rootLogger=${standin.level}, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
END

no_arguments='[ $# = 0 ] || { echo "the entry point takes no arguments: give another one" >&2; exit 64; }'

zookeeper() {
    script zkServer.sh <<'END'
[ "$1" = start-foreground ]
run ${JVMFLAGS:-} org.apache.zookeeper.server.quorum.QuorumPeerMain "${2:-/data/zoo.cfg}"
END
    script entrypoint.sh <<END
$no_arguments
cat >/data/zoo.cfg <<SETTINGS
dataDir=/data
clientPort=2181
tickTime=2000
admin.enableServer=false
4lw.commands.whitelist=\${ZOO_4LW_COMMANDS_WHITELIST:-srvr}
SETTINGS
exec zkServer.sh start-foreground
END
    image "$CACHE/zookeeper-3.8.4" zookeeper:3.8.4 zookeeper:3.9
}

# tools VERSION: kafka-topics.sh and kafka-console-producer.sh, whose jar the servers do without
tools() {
    pinned=$(dirname "$0")/../../allocator/testing/pinned/kafka-tools-$1.txt
    sum=$(sed -n "s/^\([0-9a-f]*\)  [0-9]*  org.apache.kafka:kafka-tools:$1\$/\1/p" "$pinned")
    python3 - "$1" "$work/kafka-tools.jar" <<'END'
import sys, urllib.request
version, file = sys.argv[1:]
place = f"https://repo1.maven.org/maven2/org/apache/kafka/kafka-tools/{version}/kafka-tools-{version}.jar"
urllib.request.urlretrieve(place, file)
END
    echo "$sum  $work/kafka-tools.jar" | sha256sum --check --quiet
    script kafka-topics.sh <<'END'
level=ERROR
run -Xmx128m org.apache.kafka.tools.TopicCommand "$@"
END
    script kafka-console-producer.sh <<'END'
level=ERROR
run -Xmx128m org.apache.kafka.tools.ConsoleProducer "$@"
END
}

kafka() {
    script kafka-server-start.sh <<'END'
run ${KAFKA_HEAP_OPTS:-} ${KAFKA_OPTS:-} kafka.Kafka "$1"
END
    script kafka-storage.sh <<'END'
run -Xmx128m kafka.tools.StorageTool "$@"
END
    # KAFKA_NODE_ID=1 is node.id=1; of the two names for Java's options none is a setting
    script entrypoint.sh <<END
$no_arguments
export KAFKA_HEAP_OPTS=\${KAFKA_HEAP_OPTS:--Xmx384m}
echo log.dirs=/data/logs >/data/server.properties
env | sed -n -e '/^KAFKA_HEAP_OPTS=/d;/^KAFKA_OPTS=/d' -e 's/^KAFKA_\\([A-Z_]*\\)=\\(.*\\)/\\1 \\2/p' | while read -r name value; do
    name=\${name,,}
    echo "\${name//_/.}=\$value"
done >>/data/server.properties
kafka-storage.sh format --ignore-formatted --cluster-id 4L6g3nShT-eMCtK--X86sw --config /data/server.properties
exec kafka-server-start.sh /data/server.properties
END
    case $1 in
    3.9.1 | 4.1.1 | 4.2.2 | 4.3.1 | 4.4.0) name=apache/kafka:$1 ;;
    *) name=allocator/kafka:$1 ;;
    esac
    [ "$1" != 4.1.1 ] || has "$name" || tools "$1"
    image "$CACHE/kafka-$1" "$name"
}

for each in "$@"; do
    case $each in
    python) base "$PYTHON" trixie python3,python3-venv,python3-pip,python3-dev --change 'CMD ["python"]' ;;
    java) base "$JAVA" bookworm openjdk-17-jre-headless ;;
    zookeeper) zookeeper ;;
    *) kafka "$each" ;;
    esac
done
